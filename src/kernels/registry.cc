#include "kernels/registry.h"

#include <atomic>
#include <string_view>

#include "base/check.h"

namespace qkv::inline v0::kernels {
namespace {
std::atomic<const char*> forced{nullptr};

struct Known {
  const char* name;
  Isa needs;
};
constexpr Known kKnown[] = {{"avx512", Isa::kAvx512},
                            {"avx2", Isa::kAvx2},
                            {"generic", Isa::kGeneric},
                            {kReference, Isa::kGeneric}};
}  // namespace

const char* forced_implementation() { return forced.load(std::memory_order_relaxed); }

ImplementationScope::ImplementationScope(const char* name) : previous_(forced_implementation()) {
  for (const Known& known : kKnown) {
    if (std::string_view(known.name) != name) continue;
    require<ArgumentError>(known.needs <= active_isa(), "kernels",
                           "expected an implementation that may run here, got '{}': {}", name,
                           refusal_of(name, known.needs));
    forced.store(known.name);
    return;
  }
  fail<ArgumentError>("kernels", "expected avx512, avx2, generic or reference, got '{}'", name);
}

ImplementationScope::~ImplementationScope() { forced.store(previous_); }

std::string refusal_of(const char* name, Isa needs) {
  const char* wanted = forced_implementation();
  if (wanted != nullptr && std::string_view(wanted) != name)
    return fmt::format("'{}' was asked for", wanted);
  if (needs > active_isa())
    return fmt::format("needs {}; in use is {}", isa_name(needs), active_isa_reason());
  return "";
}

std::vector<const char*> runnable_implementations() {
  std::vector<const char*> names;
  for (const Known& known : kKnown)
    if (known.needs <= active_isa()) names.push_back(known.name);
  return names;
}

}  // namespace qkv::inline v0::kernels
