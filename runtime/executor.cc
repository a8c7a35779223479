#include "runtime/executor.h"
