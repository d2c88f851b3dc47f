// Ordered implementations of a group of kernels, best first; the last is the plain reference, which
// takes everything.
//
// A group is a struct of function pointers (a table). Each instruction set fills one table in
// kernels/simd; the reference fills one per element type. A list names the tables; `pick` takes the
// first that this process may run. `ImplementationScope` makes tests and `qkv bench` run one by
// name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu.h"

namespace qkv::inline v0::kernels {

inline constexpr const char* kReference = "reference";

template <class Table>
struct Implementation {
  const char* name;  // "avx512", "avx2", "generic", "reference"
  Isa needs;
  const Table* table;
};

// One line of an explanation: what was considered, and why not. Empty refusal: taken.
struct Considered {
  std::string name;
  std::string refusal;
};

// Name forced by the innermost ImplementationScope of the process, or null.
const char* forced_implementation();

// Runs the implementation `name` where a list has one (else its first allowed one). Not
// thread-safe: for tests and benchmarks. ArgumentError if `name` needs an instruction set above
// active_isa().
class ImplementationScope {
 public:
  explicit ImplementationScope(const char* name);
  ~ImplementationScope();
  ImplementationScope(const ImplementationScope&) = delete;
  ImplementationScope& operator=(const ImplementationScope&) = delete;

 private:
  const char* previous_;
};

// Why an implementation may not run here; empty if it may.
std::string refusal_of(const char* name, Isa needs);

// Likewise by the instruction set alone, whatever is forced.
std::string refusal_of(Isa needs);

// Names of all implementations that may run in this process: "avx512", "avx2", "generic",
// "reference".
std::vector<const char*> runnable_implementations();

// Likewise of those that multiply bf16 as it is, which attention alone has: "amx", "avx512_bf16".
std::vector<const char*> runnable_bf16_implementations();
// Whether a scope asks for one of them.
bool bf16_products_are_forced();

// May be null where a list has a null table.
template <class Table>
const Table* pick_or_null(std::span<const Implementation<Table>> list) {
  const char* forced = forced_implementation();
  if (forced != nullptr) {
    for (const auto& i : list)
      if (std::string_view(i.name) == forced) return i.table;
  }
  const Isa isa = active_isa();
  for (const auto& i : list)
    if (i.needs <= isa) return i.table;
  return list.back().table;
}

template <class Table>
const Table& pick(std::span<const Implementation<Table>> list) {
  return *pick_or_null(list);
}

template <class Table>
std::vector<Considered> explain(std::span<const Implementation<Table>> list) {
  std::vector<Considered> result;
  for (const auto& i : list) {
    result.push_back({i.name, refusal_of(i.name, i.needs)});
    if (result.back().refusal.empty()) break;
  }
  return result;
}

}  // namespace qkv::inline v0::kernels
