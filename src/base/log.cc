#include "base/log.h"

#include <mutex>
#include <utility>

namespace qkv::inline v0 {
namespace {
struct State {
  std::mutex mutex;
  LogSink sink;
};
State& state() {
  static auto* s = new State;
  return *s;
}
}  // namespace

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(state().mutex);
  state().sink = std::move(sink);
}

void log_message(LogLevel level, const std::string& message) {
  LogSink sink;
  {
    const std::lock_guard lock(state().mutex);
    sink = state().sink;
  }
  if (sink) sink(level, message);
}

}  // namespace qkv::inline v0
