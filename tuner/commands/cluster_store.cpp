// qturn cluster store: the PostgreSQL database that workers of campaigns share.
#include <fmt/format.h>

#include "cache/shared_store.hpp"
#include "cache/store_schema.hpp"
#include "tuner/commands/cluster.hpp"

namespace quarterturn {

CLI::Option* add_store(CLI::App& app, std::string& url) {
  return app
      .add_option("--store", url,
                  "The shared store: postgresql://[user@]host[:port]/database[?sslmode=...]; "
                  "PG* variables, service and password files are libpq's own")
      ->envname("QTURN_STORE");
}

namespace {

// Of large tables and their locks.
constexpr std::chrono::seconds kStoreSilence{600};

int init_store(const std::string& url) {
  auto connection = pg::Connection::open(url, kStoreSilence);
  if (!connection.ok()) return fail(connection.status());
  const auto done = store_schema::migrate(*connection);
  if (!done.ok()) return fail(done.status());
  std::fprintf(stderr,
               done->from == done->to ? "qturn: the store in %s has version %lld already\n"
                                      : "qturn: made the store in %s, version %lld\n",
               connection->name().c_str(), static_cast<long long>(done->to));
  std::fprintf(stderr,
               "qturn: logins work with it once they are granted a role:\n"
               "  GRANT %s TO name;  -- tunes\n  GRANT %s TO name;  -- status and collect\n",
               store_schema::worker_role, store_schema::reader_role);
  return kExitOk;
}

int show_store(const std::string& url, bool json) {
  auto store = SharedStore::open(url, kStoreSilence);
  if (!store.ok()) return fail(store.status());
  const auto rows = store->connection().execute(
      "SELECT (SELECT value FROM quarterturn.meta WHERE key = 'version'), "
      "current_setting('server_version'), current_user, "
      "(SELECT coalesce(string_agg(substr(r, 13), ' '), 'none') FROM unnest(ARRAY["
      "'quarterturn_reader', 'quarterturn_worker', 'quarterturn_admin']) AS r "
      "WHERE pg_has_role(current_user, r::name, 'MEMBER')), "
      "(SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), "
      "(SELECT count(*) FROM quarterturn.trial), (SELECT count(*) FROM quarterturn.winner), "
      "(SELECT count(*) FROM quarterturn.campaign), "
      "(SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c JOIN pg_namespace n "
      "ON n.oid = c.relnamespace WHERE n.nspname = 'quarterturn' AND c.relkind = 'r')");
  if (!rows.ok()) return fail(rows.status());
  const auto at = [&](int column) { return std::string(rows->text(0, column)); };
  Table table({"store", "version", "server", "user", "roles", "tls", "trials", "winners",
               "campaigns", "bytes"});
  table.add({store->connection().name(), at(0), at(1), at(2), at(3), at(4) == "t" ? "yes" : "no",
             at(5), at(6), at(7), at(8)});
  table.print(json);
  return kExitOk;
}

}  // namespace

std::function<int()> register_cluster_store(CLI::App& app) {
  auto* command =
      app.add_subcommand("store", "Make or look at a PostgreSQL database that workers share");
  command->require_subcommand(1);
  auto url = std::make_shared<std::string>();
  auto global = std::make_shared<GlobalOptions>();
  auto* init = command->add_subcommand(
      "init", "Make its tables and roles, or bring an older version forward; again does no harm");
  add_store(*init, *url)->required();
  auto* show = command->add_subcommand("show", "Its version, size, and what this login may do");
  add_store(*show, *url)->required();
  add_json(*show, *global);
  return [=] { return init->parsed() ? init_store(*url) : show_store(*url, global->json); };
}

}  // namespace quarterturn
