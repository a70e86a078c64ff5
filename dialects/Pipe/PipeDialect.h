// The pipe dialect: stages, actions, named values, transfers.
#pragma once

#include "dialects/Dist/DistDialect.h"

#include "dialects/Pipe/PipeDialect.h.inc"
#include "dialects/Pipe/PipeEnums.h.inc"
#define GET_OP_CLASSES
#include "dialects/Pipe/PipeOps.h.inc"
