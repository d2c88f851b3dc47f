// Looking at errors in tests.
#pragma once

#include <functional>
#include <string>

#include <gtest/gtest.h>

namespace qkv::testing {

// The message of the error of type E that `action` must throw.
template <class E>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an error of the asked type";
  return {};
}

}  // namespace qkv::testing
