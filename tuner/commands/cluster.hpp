// What the subcommands of qturn cluster share.
#pragma once

#include "tuner/campaign.hpp"
#include "tuner/commands/command.hpp"

namespace quarterturn {

Result<Campaign> read_campaign(const std::string& file);

/// As the setting "backend" has it.
std::string backend_name(Vendor vendor);

/// The positional FILE.
void add_campaign(CLI::App& app, std::string& file);

/// --store URL, or QTURN_STORE.
CLI::Option* add_store(CLI::App& app, std::string& url);

std::function<int()> register_cluster_work(CLI::App& app);
std::function<int()> register_cluster_submit(CLI::App& app);
std::function<int()> register_cluster_store(CLI::App& app);

}  // namespace quarterturn
