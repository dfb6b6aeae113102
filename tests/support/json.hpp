// nlohmann's JSON without its weight: only the sources that take a document apart include the whole of it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace support {

using Json = nlohmann::json;

}  // namespace support
