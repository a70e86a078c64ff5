// All ops of the train dialect, one file a chapter.
#ifndef MERAK_TRAIN_OPS
#define MERAK_TRAIN_OPS

include "dialects/Train/ConfigAttributes.td"
include "dialects/Train/ModelOps.td"
include "dialects/Train/ElementwiseOps.td"
include "dialects/Train/ShapeOps.td"
include "dialects/Train/ReductionOps.td"
include "dialects/Train/NetworkOps.td"
include "dialects/Train/WindowOps.td"

#endif
