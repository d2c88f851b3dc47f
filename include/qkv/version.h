// Version of the library, for checks at compile time and at run time.
#pragma once

#define QKV_VERSION_MAJOR 0
#define QKV_VERSION_MINOR 1
#define QKV_VERSION_PATCH 0

#if defined(__GNUC__)
#define QKV_API __attribute__((visibility("default")))
#else
#define QKV_API
#endif

namespace qkv::inline v0 {

// "0.1.0". Thread-safe.
QKV_API const char* version();

}  // namespace qkv::inline v0
