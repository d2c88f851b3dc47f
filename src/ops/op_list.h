// Every op of the library: what the tests, the completeness check and the documents go by.
#pragma once

#include <span>

namespace qkv::inline v0::ops {

struct OpInfo {
  const char* name;         // the function of the forward
  const char* header;       // under src/ops; "qkv/..." is a promised one
  const char* reference;    // the plain implementation, under src/kernels/reference
  const char* gradient;     // the function of the backward; empty: none
  const char* no_gradient;  // why there is none; empty where there is one
  const char* doc;          // one line: what it computes
};

std::span<const OpInfo> op_list();

// The entry of an op; ArgumentError naming the op if there is none.
const OpInfo& find_op(const char* name);

}  // namespace qkv::inline v0::ops
