// Ragged layouts are part of the promised API.
#pragma once

#include "qkv/layout.h"
