"""Campaigns that share a real PostgreSQL server, started here for the test: who may do what, leases, workers
killed, the server lost in the middle, what is exported, and schemas that are not what they should be."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

QTURN = os.environ["QTURN_PROGRAM"]
PASSWORDS = {"root": "owner-Pa55/word", "ada": "admin-S3cret", "tina": "worker-S3cret", "rita": "reader-S3cret"}
LEASE = 2.0


def skip(why):
    print("SKIPPED:", why)
    sys.exit(0)


def find_server():
    """The folder of a PostgreSQL's server programs."""
    folders = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name) if p.parent.name.isdigit() else 0)
    for folder in reversed(folders):
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    return pathlib.Path(found).resolve().parent if found else None


def wait_until(seconds, what, told):
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s in vain for {told}")
        time.sleep(0.05)


class Server:
    """A server of its own in one folder, on loopback, with TLS where openssl is there."""

    def __init__(self, folder, programs):
        self.folder, self.programs = folder, programs
        # PostgreSQL refuses to run as root.
        self.user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.tls = False

    def run(self, *command, **more):
        return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                              cwd=self.folder, env=dict(os.environ, LC_ALL="C"), **more)

    def make(self):
        pwfile = self.folder / "pwfile"
        pwfile.write_text(PASSWORDS["root"] + "\n")
        if shutil.which("openssl"):
            made = self.run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                            "-keyout", "server.key", "-out", "server.crt")
            self.tls = made.returncode == 0
        if self.user:
            shutil.chown(self.folder, self.user["user"], self.user["group"])
            for path in self.folder.iterdir():
                shutil.chown(path, self.user["user"], self.user["group"])
        made = self.run(self.programs / "initdb", "-D", self.folder / "data", "-U", "root", "-A", "scram-sha-256", "-E", "UTF8",
                        "--locale=C", "--no-sync", "--no-instructions", f"--pwfile={pwfile}", **self.user)
        if made.returncode != 0:
            skip("initdb does not work here: " + made.stdout + made.stderr)
        pwfile.unlink()

    def start(self):
        tls = f"-c ssl=on -c ssl_cert_file={self.folder}/server.crt -c ssl_key_file={self.folder}/server.key " if self.tls else ""
        begun = self.run(self.programs / "pg_ctl", "-D", self.folder / "data", "-w", "-l", self.folder / "server.log", "-o",
                         f"-c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} -c fsync=off {tls}-p {self.port}",
                         "start", **self.user)
        return begun.returncode == 0

    def stop(self, mode):
        return self.run(self.programs / "pg_ctl", "-D", self.folder / "data", "-m", mode, "-w", "stop", **self.user)

    def url(self, user, database="tuning", options=""):
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}{options}"

    def sql(self, statement, user="root", database="tuning"):
        """Rows as text, or the error."""
        done = subprocess.run([self.programs / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url(user, database)],
                              input=statement, capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, PGPASSWORD=PASSWORDS[user], PGCONNECT_TIMEOUT="5"))
        return done.stdout.strip() if done.returncode == 0 else "ERROR " + done.stderr

    def number(self, statement, **more):
        value = self.sql(statement, **more)
        assert value.isdigit(), value
        return int(value)


class Site:
    """A login's home, its password file, and everything that commands said."""

    def __init__(self, folder, server):
        self.folder, self.server, self.said, self.workers = folder, server, [], []
        passwords = folder / "pgpass"
        passwords.write_text("".join(f"127.0.0.1:*:*:{user}:{word}\n" for user, word in PASSWORDS.items()))
        passwords.chmod(0o600)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "SLURM", "QTURN_STORE"))}
        self.environment.update(PGPASSFILE=str(passwords), HOME=str(folder), QTURN_BACKEND="cpu", LC_ALL="C")

    def command(self, *arguments):
        return [QTURN, "cluster", *map(str, arguments)]

    def qturn(self, *arguments, expect=0, **more):
        done = subprocess.run(self.command(*arguments), env=dict(self.environment, **more), capture_output=True, text=True,
                              timeout=120)
        self.said.append(done.stdout + done.stderr)
        assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
        return done

    def worker(self, campaign, name, *arguments):
        scratch = self.folder / f"disk-{name}"
        scratch.mkdir(exist_ok=True)
        log = open(self.folder / f"{name}.log", "a")
        self.workers.append(subprocess.Popen(
            self.command("work", campaign, "--scratch", scratch, "--threads", "2", "--cores", "1", "--interval", "0.4",
                         "--lease", LEASE, "--patience", "60", *arguments),
            env=self.environment, stdout=log, stderr=log, start_new_session=True))
        return self.workers[-1]

    def stop(self):
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()

    def plan(self, name, shapes, shards=3):
        campaign = self.folder / name
        self.qturn("plan", "--op", "quantize", "--shape", ",".join(shapes), "--shards", shards, "--cores", "1", "--candidates", "2",
                   "--rounds", "4", "--threads", "2", "-o", campaign)
        return campaign

    def committed(self):
        """Trials in every database on the disks of the nodes now."""
        out = set()
        for database in self.folder.glob("disk-*/quarterturn-*/*/tuning.db"):
            try:
                with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5) as c:
                    out.update(row[0].hex() for row in c.execute("SELECT uuid FROM trial"))
            except sqlite3.OperationalError:
                pass
        return out

    def content(self, folder):
        manifest = json.loads((folder / "CURRENT").read_text())
        return manifest["generations"][-1]["content_sha256"]

    def check_no_password(self):
        texts = self.said + [p.read_text(errors="replace") for p in self.folder.rglob("*")
                             if p.is_file() and p.suffix in (".log", ".sh", ".json", ".campaign") or p.name == "CURRENT"]
        for text in texts:
            for word in PASSWORDS.values():
                assert word not in text and word.replace("/", "%2F") not in text, text


def stored(server):
    return {row.replace("-", "") for row in server.sql("SELECT uuid FROM quarterturn.trial").split()}


def schema(site, server):
    """Made by whoever may, once, also by several at a time; else who may not is told what is missing."""
    for database in ("tuning", "other"):
        assert not server.sql(f"CREATE DATABASE {database}", database="postgres").startswith("ERROR")
    absent = site.qturn("store", "show", "--store", server.url("root"), expect=1)
    assert "store init" in absent.stderr, absent.stderr
    for user in ("ada", "tina", "rita"):
        server.sql(f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORDS[user]}'")
    refused = site.qturn("store", "init", "--store", server.url("ada", "other"), expect=3).stderr
    assert "permission denied" in refused, refused
    statements = refused[refused.index("CREATE ROLE"):].replace("\\connect \"other\"", "")
    assert not server.sql(statements, database="other").startswith("ERROR"), statements
    site.qturn("store", "init", "--store", server.url("ada", "other"))
    makers = [threading.Thread(target=site.qturn, args=("store", "init", "--store", server.url("root"))) for _ in range(3)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert sum("made the store" in said for said in site.said) == 2, site.said
    server.sql("GRANT quarterturn_worker TO tina; GRANT quarterturn_reader TO rita")
    shown = json.loads(site.qturn("store", "show", "--store", server.url("tina"), "--json").stdout)
    assert (shown["version"], shown["roles"], shown["trials"]) == (1, "worker", 0), shown


def connections(site, server):
    """What is libpq's own goes through; what is wrong is said, and no password with it."""
    gone = site.qturn("store", "show", "--store", "postgresql://rita@127.0.0.1:1/x", expect=3)
    assert "cannot be reached" in gone.stderr, gone.stderr
    for url in ("postgresql://rita:reader-S3cret%zz@127.0.0.1/x", "postgresql://rita:reader-S3cret@[::1/x",
                "postgresql://rita@127.0.0.1/x?nothing=reader-S3cret"):
        assert "cannot read the URL" in site.qturn("store", "show", "--store", url, expect=2).stderr
    site.qturn("store", "show", "--store", "mysql://x", expect=2)
    wrong = site.qturn("store", "show", "--store", server.url("rita").replace("rita@", "rita:wrong-W0rd@"), expect=3)
    assert "authentication failed" in wrong.stderr and "wrong-W0rd" not in wrong.stderr, wrong.stderr
    site.qturn("store", "show", "--store", server.url("root").replace("root@", "root:" + PASSWORDS["root"].replace("/", "%2F") + "@"),
               PGPASSFILE="/dev/null")
    service = site.folder / "service.conf"
    service.write_text(f"[tuning]\nhost=127.0.0.1\nport={server.port}\nuser=rita\ndbname=tuning\n")
    site.qturn("store", "show", "--store", "postgresql://?service=tuning", PGSERVICEFILE=str(service))
    empty = site.folder / "empty"
    empty.mkdir()
    (empty / "libpq.so.5").write_bytes(b"")
    no_library = site.qturn("store", "show", "--store", server.url("rita"), expect=3, LD_LIBRARY_PATH=str(empty))
    assert "libpq5" in no_library.stderr, no_library.stderr
    if server.tls:
        root = f"?sslmode=verify-ca&sslrootcert={server.folder}/server.crt"
        shown = json.loads(site.qturn("store", "show", "--store", server.url("rita", options=root), "--json").stdout)
        assert shown["tls"] == "yes", shown
        other = site.qturn("store", "show", "--store", server.url("rita", options="?sslmode=verify-full&sslrootcert=" +
                                                                  str(server.folder / "server.crt")), expect=3)
        assert "certificate" in other.stderr, other.stderr


def roles(server):
    """Each may do its part and nothing else."""
    insert = "INSERT INTO quarterturn.plan(name, text) VALUES (sha256('x'), 'x')"
    refused = {
        "rita": [insert, "UPDATE quarterturn.lease SET state = 2", "DELETE FROM quarterturn.trial",
                 "INSERT INTO quarterturn.worker VALUES ('c', gen_random_uuid(), '', 0)", "CREATE TABLE quarterturn.mine(x int)"],
        "tina": ["DELETE FROM quarterturn.trial", "UPDATE quarterturn.trial SET ratio = 2", "TRUNCATE quarterturn.winner",
                 "UPDATE quarterturn.lease SET problems = '{}'", "INSERT INTO quarterturn.tombstone VALUES (0, 'x', 1, '')",
                 "UPDATE quarterturn.meta SET value = '2'", "ALTER TABLE quarterturn.trial ADD COLUMN x int",
                 "CREATE TABLE quarterturn.mine(x int)", "DROP SCHEMA quarterturn CASCADE", "SET ROLE quarterturn_admin"]}
    for user, statements in refused.items():
        for statement in statements:
            assert re.search("permission denied|must be owner", server.sql(statement, user)), (user, statement)
    assert server.sql("SELECT count(*) FROM quarterturn.trial", "rita") == "0"
    # A name is the hash of its text, whoever adds it.
    assert "check constraint" in server.sql(insert.replace("'x')", "'y')", 1), "tina")
    assert server.sql(insert, "tina") == "" and server.sql("DELETE FROM quarterturn.plan") == ""


def same_content(site, server):
    """Trials that went through the store are published under the hash of those that went through files."""
    campaign = site.plan("files.campaign", ["1..2x64", "1..3x64", "1..2x128", "1..3x128"], 2)
    workers = [site.worker(campaign, f"files{k}", "--shard", k) for k in range(2)]
    for k, worker in enumerate(workers):
        assert worker.wait(120) == 0, (site.folder / f"files{k}.log").read_text()
    plain = json.loads(site.qturn("collect", campaign, "-o", site.folder / "plain.db", "--publish", site.folder / "by-files", "--json").stdout)
    # A reader collects what files have, and cannot give it to the store.
    reader = site.qturn("collect", campaign, "-o", site.folder / "reader.db", "--store", server.url("rita"), "--json")
    assert "not in the store" in reader.stderr and server.number("SELECT count(*) FROM quarterturn.trial") == 0, reader.stderr
    first = site.qturn("collect", campaign, "-o", site.folder / "both.db", "--store", server.url("tina"), "--json")
    assert f"gave the store {plain['new_trials']} trials" in first.stderr, first.stderr
    again = site.qturn("collect", campaign, "-o", site.folder / "both.db", "--store", server.url("tina"), "--json")
    assert json.loads(again.stdout)["new_trials"] == 0 and "gave the store" not in again.stderr, again.stderr
    (site.folder / "files.campaign.d").rename(site.folder / "away")
    row = json.loads(site.qturn("collect", campaign, "-o", site.folder / "store.db", "--store", server.url("rita"), "--publish",
                                site.folder / "by-store", "--json").stdout)
    assert row["copies"] == 0 and row["answered"] == 4 and row["new_trials"] == plain["new_trials"] > 4, row
    assert site.content(site.folder / "by-store") == site.content(site.folder / "by-files")
    # One bit of a trial, and it is noticed.
    server.sql("UPDATE quarterturn.trial SET ratio = ratio + 1e-9 WHERE uuid = (SELECT min(uuid::text)::uuid FROM quarterturn.trial)")
    site.qturn("collect", campaign, "-o", site.folder / "bad.db", "--store", server.url("rita"), expect=3)
    server.sql("TRUNCATE quarterturn.trial, quarterturn.winner")


def night(site, server):
    """Three workers; one is killed, and the server for a while."""
    shapes = [f"1..{m}x{n}" for n in (192, 256) for m in range(2, 6)]
    campaign = site.plan("night.campaign", shapes)
    store = ("--store", server.url("tina"))
    workers = {name: site.worker(campaign, name, *store, *shard)
               for name, shard in (("a", ("--shard", "0")), ("b", ("--shard", "1")), ("c", ()))}
    done = "SELECT count(*) FROM quarterturn.lease WHERE state = 2"
    wait_until(120, lambda: server.number(done) >= 2, "two lots")
    seen = site.committed()
    owners = "SELECT count(DISTINCT owner) FROM quarterturn.lease WHERE state = 1"
    wait_until(60, lambda: server.number(owners) == 3, "three owners of leases at once")
    told = json.loads(site.qturn("status", campaign, "--store", server.url("rita"), "--json").stdout.splitlines()[0])
    assert told["state"] == "running", told
    workers["a"].send_signal(signal.SIGKILL)
    workers["a"].wait()
    seen |= site.committed()
    held = server.number("SELECT count(*) FROM quarterturn.lease WHERE state = 1")
    server.stop("immediate")
    assert held >= 1, held
    # Without the server they go on: copies appear in the campaign's folder.
    folder = site.folder / "night.campaign.d"
    wait_until(60, lambda: list(folder.glob("shard-*.db")), "copies in the campaign's folder")
    assert workers["b"].poll() is None, (site.folder / "b.log").read_text()
    seen |= site.committed()
    assert server.start()
    while any(workers[name].poll() is None for name in "bc"):
        seen |= site.committed()
        time.sleep(0.05)
    for name in "bc":
        log = (site.folder / f"{name}.log").read_text()
        assert workers[name].returncode == 0, log
        assert "goes on without the store" in log and "reached again" in log, log
    states = server.sql("SELECT state, count(*) FROM quarterturn.lease GROUP BY 1")
    assert states == "2|8", states
    # What the killed one had not sent lies on its disk: the same command finds it, and nothing else to do.
    seen |= site.committed()
    assert site.worker(campaign, "a", *store, "--shard", "0").wait(120) == 0, (site.folder / "a.log").read_text()
    there = stored(server)
    assert seen <= there, f"{len(seen - there)} of {len(seen)} trials are lost"
    assert not site.committed() and len(seen) > 8, len(seen)
    row = json.loads(site.qturn("collect", campaign, "-o", site.folder / "night.db", *store, "--json").stdout)
    assert row["answered"] == 8 and row["missing"] == 0 and row["conflicts"] == 0, row
    assert row["new_trials"] == len(there) == server.number("SELECT count(*) FROM quarterturn.trial"), (row, len(there))
    print(f"{len(there)} trials in the store, {len(seen)} of them seen when they were committed; none lost")


def asked_to_end(site, server):
    """SIGTERM: what was committed is in the store, and the lease is free at once."""
    campaign = site.plan("end.campaign", [f"1..{m}x320" for m in range(2, 6)], 1)
    workers = [site.worker(campaign, f"end{k}", "--store", server.url("tina")) for k in range(2)]
    mine = f"FROM quarterturn.lease WHERE campaign = '{hashlib.sha256(campaign.read_bytes()).hexdigest()[:12]}'"
    wait_until(120, lambda: server.number(f"SELECT count(*) {mine} AND state = 2") >= 1, "a lot")
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait(60) for worker in workers] == [130, 130]
    assert server.number(f"SELECT count(*) {mine} AND state = 1") == 0
    assert server.number(f"SELECT count(*) {mine} AND state = 0 AND attempts = 0 AND owner IS NULL") >= 1
    assert site.committed() <= stored(server)
    # Each lot was given to one worker: all its timings are of one run.
    runs = server.sql("SELECT max(n) FROM (SELECT count(DISTINCT campaign) AS n FROM quarterturn.trial t "
                      "JOIN quarterturn.problem p ON p.id = t.problem_id "
                      f"WHERE EXISTS (SELECT 1 {mine} AND p.text = ANY (problems)) GROUP BY problem_id) AS r")
    assert runs == "1", runs


def strange_schemas(site, server):
    """Newer, hostile, foreign: told, and left alone."""
    show = ("store", "show", "--store", server.url("rita"))
    cases = (("UPDATE quarterturn.meta SET value = '2'", "UPDATE quarterturn.meta SET value = '1'", "newer Quarterturn"),
             ("CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
              "CREATE TRIGGER t BEFORE INSERT ON quarterturn.trial FOR EACH ROW EXECUTE FUNCTION public.f()",
              "DROP TRIGGER t ON quarterturn.trial", "trial with a trigger"),
             ("ALTER TABLE quarterturn.lease ENABLE ROW LEVEL SECURITY", "ALTER TABLE quarterturn.lease DISABLE ROW LEVEL SECURITY",
              "row security"),
             ("CREATE VIEW quarterturn.v AS SELECT 1", "DROP VIEW quarterturn.v", "v is no table"),
             ("ALTER TABLE quarterturn.trial ALTER ratio TYPE text", "ALTER TABLE quarterturn.trial ALTER ratio TYPE double precision "
              "USING ratio::double precision", "lacks the table trial"),
             ("ALTER SCHEMA quarterturn OWNER TO tina", "ALTER SCHEMA quarterturn OWNER TO quarterturn_admin", "belongs to tina"))
    for spoil, mend, told in cases:
        assert not server.sql(spoil).startswith("ERROR"), server.sql(spoil)
        refused = site.qturn(*show, expect=3)
        assert told in refused.stderr, refused.stderr
        if "OWNER" in spoil or "meta" in spoil:
            site.qturn("store", "init", "--store", server.url("root"), expect=3)
        assert not server.sql(mend).startswith("ERROR"), server.sql(mend)
    site.qturn(*show)


def scripts(site, server):
    """A job's script holds the URL, and never with a password."""
    campaign = site.folder / "night.campaign"
    script = site.qturn("submit", campaign, "--store", server.url("tina"), "--print").stdout
    assert f"--store {server.url('tina')}" in script or f"--store '{server.url('tina')}'" in script, script
    url = server.url("tina").replace("tina@", f"tina:{PASSWORDS['tina']}@")
    for arguments in (("--store", url), ("--work=--store", f"--work={url}"), (f"--work=--store={url}",)):
        assert "password" in site.qturn("submit", campaign, *arguments, "--print", expect=2).stderr


def page(site, server):
    """The commands of the page, as they stand there."""
    text = pathlib.Path(os.environ["QTURN_DOCS"], "cluster.md").read_text()
    chapter = text[text.index("\n## A shared store\n"):]
    commands = chapter[chapter.index("```sh\n") + 6:]
    commands = commands[:commands.index("```")]
    assert commands.count("qturn ") >= 6
    server.sql("CREATE ROLE tuner LOGIN; CREATE ROLE viewer LOGIN")
    desk = site.folder / "desk"
    desk.mkdir()
    environment = dict(site.environment, STORE=server.url("root"), SHARED=str(desk / "published"), TMPDIR=str(desk), HOME=str(desk),
                       WORK="--op quantize --shape 1..2x64,1..3x64 --threads 2", TUNE="--candidates 3 --rounds 4 --cores 1",
                       QTURN_THREADS="2", PATH=f"{pathlib.Path(QTURN).parent}:{server.programs}:{os.environ['PATH']}")
    subprocess.run([QTURN, "db", "keygen", desk / "publishing.key"], env=environment, check=True, capture_output=True)
    done = subprocess.run(["/bin/sh", "-euc", commands], cwd=desk, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "published as generation 1" in done.stderr, done.stderr


def main():
    programs = find_server()
    if not programs:
        skip("PostgreSQL's server is not installed (scripts/install-packages test)")
    # Unix sockets want short paths, and the server's user must reach it.
    with tempfile.TemporaryDirectory(prefix="qturn-pg-") as data, \
            tempfile.TemporaryDirectory(prefix="postgresql-", dir=os.environ["QTURN_TEST_FOLDER"],
                                        ignore_cleanup_errors=True) as home:
        os.chmod(data, 0o755)
        server = Server(pathlib.Path(data), programs)
        server.make()
        if not server.start():
            log = server.folder / "server.log"
            skip("the server does not start here: " + (log.read_text() if log.exists() else ""))
        site = Site(pathlib.Path(home), server)
        try:
            begun = time.monotonic()
            for part in (lambda: schema(site, server), lambda: connections(site, server), lambda: roles(server),
                         lambda: same_content(site, server), lambda: night(site, server), lambda: asked_to_end(site, server),
                         lambda: strange_schemas(site, server), lambda: scripts(site, server),
                         lambda: page(site, server)):
                part()
                print(f"{time.monotonic() - begun:.1f} s")
            site.check_no_password()
        finally:
            site.stop()
            server.stop("immediate")


if __name__ == "__main__":
    main()
