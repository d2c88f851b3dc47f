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
constexpr Known kBf16[] = {{"amx", Isa::kAmx}, {"avx512_bf16", Isa::kAvx512Bf16}};

template <std::size_t kCount>
std::vector<const char*> runnable(const Known (&all)[kCount]) {
  std::vector<const char*> names;
  for (const Known& known : all)
    if (known.needs <= active_isa()) names.push_back(known.name);
  return names;
}

template <std::size_t kCount>
const Known* find(const Known (&all)[kCount], std::string_view name) {
  for (const Known& known : all)
    if (known.name == name) return &known;
  return nullptr;
}
}  // namespace

const char* forced_implementation() { return forced.load(std::memory_order_relaxed); }

ImplementationScope::ImplementationScope(const char* name) : previous_(forced_implementation()) {
  const Known* known = find(kKnown, name);
  if (known == nullptr) known = find(kBf16, name);
  require<ArgumentError>(known != nullptr, "kernels",
                         "expected amx, avx512_bf16, avx512, avx2, generic or reference, got '{}'",
                         name);
  require<ArgumentError>(known->needs <= active_isa(), "kernels",
                         "expected an implementation that may run here, got '{}': {}", name,
                         refusal_of(known->needs));
  forced.store(known->name);
}

ImplementationScope::~ImplementationScope() { forced.store(previous_); }

std::string refusal_of(const char* name, Isa needs) {
  const char* wanted = forced_implementation();
  // What only some lists have does not matter to the others.
  if (wanted != nullptr && std::string_view(wanted) != name &&
      (find(kKnown, wanted) != nullptr || find(kBf16, name) != nullptr))
    return fmt::format("'{}' was asked for", wanted);
  return refusal_of(needs);
}

bool bf16_products_are_forced() {
  const char* wanted = forced_implementation();
  return wanted != nullptr && find(kBf16, wanted) != nullptr;
}

std::string refusal_of(Isa needs) {
  if (needs <= active_isa()) return "";
  return fmt::format("needs {}; in use is {}", isa_name(needs), active_isa_reason());
}

std::vector<const char*> runnable_implementations() { return runnable(kKnown); }
std::vector<const char*> runnable_bf16_implementations() { return runnable(kBf16); }

}  // namespace qkv::inline v0::kernels
