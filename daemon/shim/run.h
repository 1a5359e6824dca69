// Making a runner; see run.c.
#pragma once

#include "shim.h"

_Noreturn void run(const struct order* order, struct follow_options* how);
