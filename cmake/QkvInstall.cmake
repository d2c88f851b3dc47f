include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
# Filled in with the public headers: qkv::qkv (shared) and qkv::qkv_static.
