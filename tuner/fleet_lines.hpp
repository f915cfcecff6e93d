// What a fleet and the process of one device say to each other: a JSON object a line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tuner/session.hpp"

namespace quarterturn::fleet_lines {

using Json = nlohmann::json;

Json json_of(const Item& item);
Json json_of(const std::vector<Item>& items);
Result<std::vector<Item>> items_of(const Json& from);

/// What a session says of one problem, but for the problem itself and where its time went.
Json json_of(const Tuned& tuned);
Tuned tuned_of(const Item& item, const Json& from);

/// False where the reader is gone.
bool write_all(int fd, const std::string& text);

}  // namespace quarterturn::fleet_lines
