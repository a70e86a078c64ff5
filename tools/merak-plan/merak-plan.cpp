// merak-plan verify|print|draw|diff|simulate|report OUT.plan
#include "tools/merak-plan/PlanTool.h"

#include <iostream>

int main(int argc, char **argv) {
  const int code = merak::planToolMain(argc, argv, std::cout, std::cerr);
  if (std::cout.flush())
    return code;
  std::cerr << "error: cannot write to standard output\n";
  return code ? code : 1;
}
