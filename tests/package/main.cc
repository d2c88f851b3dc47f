// Uses the installed library: a view of a tensor, a typed mask, and an error caught by its type.
#include <cstdio>

#include <qkv/error.h>
#include <qkv/tensor.h>
#include <qkv/version.h>

int main() {
  const qkv::Tensor a = qkv::Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const qkv::Tensor b = a.transpose(0, 1).contiguous();
  try {
    (void)a.reshape({4});
    return 1;
  } catch (const qkv::ShapeError& error) {
    std::printf("qkv %s: %s; %g\n", qkv::version(), error.what(),
                static_cast<double>(b.data<float>()[1]));
  }
  return 0;
}
