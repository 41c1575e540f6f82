#include "../lanes.h"
