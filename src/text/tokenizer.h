// The tokenizer is part of the promised API.
#pragma once

#include "qkv/tokenizer.h"
