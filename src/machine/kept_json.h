// Owns: what verdicts that are kept as JSON have in common: how they are spelled, their digest, and how they are read.
// Keeps: the digest is that of the compact spelling, so that it does not depend on how a file is laid out.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"

namespace sluice::machine {

using Json = nlohmann::ordered_json;

// On one line where `indent` is -1. What is no valid UTF-8, as paths need not be, is replaced.
std::string dump(const Json& j, int indent);
std::string digest_of(const Json& j);

// The file's text. `not_found` if there is none.
Result<std::string> read_kept(const std::string& path);

}  // namespace sluice::machine
