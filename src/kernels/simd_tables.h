// Names the tables that every instruction set fills, and lists them best first.
#pragma once

#if defined(__x86_64__)
// Declares `name` of type Table in the namespace of each instruction set.
#define QKV_SIMD_TABLE(Table, name) \
  namespace avx512 {                \
  extern const Table name;          \
  }                                 \
  namespace avx2 {                  \
  extern const Table name;          \
  }                                 \
  namespace generic {               \
  extern const Table name;          \
  }
// Elements of an array of Implementation<Table>; the reference follows.
#define QKV_SIMD_LIST(name)                                                     \
  {"avx512", Isa::kAvx512, &avx512::name}, {"avx2", Isa::kAvx2, &avx2::name}, { \
    "generic", Isa::kGeneric, &generic::name                                    \
  }
#else
#define QKV_SIMD_TABLE(Table, name) \
  namespace generic {               \
  extern const Table name;          \
  }
#define QKV_SIMD_LIST(name) \
  { "generic", Isa::kGeneric, &generic::name }
#endif
