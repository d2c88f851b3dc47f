#include "autograd/context.h"

#include "base/random.h"

namespace qkv::inline v0 {

RandomKey Context::random_key(int which) const {
  const std::uint64_t place = hash_pair(hash_text(module), static_cast<std::uint64_t>(which));
  return {hash_pair(seed, place), step};
}

ModuleScope::ModuleScope(Context& context, const std::string& name)
    : context_(context), previous_(context.module.size()) {
  if (!context_.module.empty()) context_.module += '.';
  context_.module += name;
  if (context_.tape != nullptr) context_.tape->set_module(context_.module);
}

ModuleScope::~ModuleScope() {
  context_.module.resize(previous_);
  if (context_.tape != nullptr) context_.tape->set_module(context_.module);
}

}  // namespace qkv::inline v0
