// Messages of the library. It never prints: the program sets a sink. Thread-safe.
#pragma once

#include <functional>
#include <string>

namespace qkv::inline v0 {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
using LogSink = std::function<void(LogLevel, const std::string& message)>;
void set_log_sink(LogSink sink);  // null: drop messages (the default)
void log_message(LogLevel level, const std::string& message);

}  // namespace qkv::inline v0
