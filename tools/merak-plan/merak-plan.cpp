// merak-plan verify|print|draw|diff|simulate|report OUT.plan
#include "tools/merak-plan/PlanTool.h"

#include <iostream>

int main(int argc, char **argv) {
  return merak::planToolMain(argc, argv, std::cout, std::cerr);
}
