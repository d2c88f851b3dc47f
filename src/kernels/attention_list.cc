#include "kernels/attention_list.h"

#include "kernels/reference/attention.h"

namespace qkv::inline v0::kernels {

namespace {

template <class T>
const char* takes_all(const AttentionProblem<T>&) {
  return nullptr;
}

template <class T>
constexpr AttentionImplementation<T> kNaive = {"naive", takes_all<T>, attention_reference<T>,
                                               attention_backward_reference<T>};

}  // namespace

template <class T>
bool AttentionImplementation<T>::is_naive() const {
  return name == kNaive<T>.name;
}

template <>
std::span<const AttentionImplementation<double>> attention_implementations() {
  return {&kNaive<double>, 1};
}

template <>
std::span<const AttentionImplementation<float>> attention_implementations() {
  return {&kNaive<float>, 1};
}

template struct AttentionImplementation<float>;
template struct AttentionImplementation<double>;

}  // namespace qkv::inline v0::kernels
