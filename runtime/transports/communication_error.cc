#include "runtime/communicator.h"
