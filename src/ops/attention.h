// Attention is part of the promised API.
#pragma once

#include "qkv/attention.h"
