# Every third-party library of the project, in one place. Reasons: docs/dependencies.md.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)

# Only for building qkv itself.
if(TARGET qkv_flags)
  find_package(nlohmann_json REQUIRED)
  find_package(tomlplusplus REQUIRED)
endif()
if(QKV_BUILD_APPS)
  find_package(CLI11 REQUIRED)
endif()
if(QKV_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
endif()
