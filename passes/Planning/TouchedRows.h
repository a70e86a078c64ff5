// How many different rows of a table a number of ids name.
#pragma once

namespace merak::planning {

// From one count that is known, as if some of the rows were named with equal
// chances and the others never: n ids then name k (1 - exp(-n / k)) rows of k.
class TouchedRows {
public:
  // `rows` different ones of `ids`; both above 0, more rows than ids count as
  // many.
  TouchedRows(double rows, double ids);
  // Rows that so many other ids are expected to name, at most their number.
  double different(double ids) const;

private:
  double all; // k; infinite: no id comes twice
};

} // namespace merak::planning
