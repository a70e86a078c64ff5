// Chapters: shape, tables.
#ifndef MERAK_TRAIN_SHAPE_OPS
#define MERAK_TRAIN_SHAPE_OPS

include "dialects/Train/TrainBase.td"

let opDocGroup = Train_ShapeOps in {

def Train_ReshapeOp : Train_Op<"reshape", [Pure, ViewLike, FollowsPrecision, Rule, Grad]> {
  let summary = "the same elements in row-major order with another shape";
  let description = [{
    Element number i of x, counted row-major, is element number i of y.

    *Constraints:* equal element type and element count.

    ```mlir
    %y = train.reshape %x : tensor<8x192xf32> to tensor<8x3x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($x) `to` type($y)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Train_TransposeOp : Train_Op<"transpose", [Pure, Infer, ViewLike, FollowsPrecision, Rule, Grad]> {
  let summary = "permuted dimensions";
  let description = [{
    Dimension i of y is dimension perm[i] of x: `y[i0, i1, ...] = x[j0, j1, ...]`
    where `j[perm[k]] = i[k]`.

    *Constraints:* `perm` has each of 0 to rank - 1 once; y has x's element type
    and the permuted shape.

    ```mlir
    %y = train.transpose %x perm [0, 2, 1] : tensor<8x3x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$perm);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `perm` $perm attr-dict `:` type($x)";
  let hasFolder = 1;
}

def Train_ExpandOp : Train_Op<"expand", [Pure, ViewLike, FollowsPrecision, Rule, Grad]> {
  let summary = "NumPy broadcast to a larger shape";
  let description = [{
    Dimensions of size 1 and those that x lacks in front are repeated.

    *Constraints:* equal element type; from the last dimension on, each of x is 1
    or that of y, and x has no more dimensions than y.

    ```mlir
    %y = train.expand %x : tensor<3x1xf32> to tensor<8x3x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($x) `to` type($y)";
  let hasVerifier = 1;
}

def Train_SliceOp : Train_Op<"slice", [Pure, Infer, ViewLike, FollowsPrecision, RuleLocal, Grad]> {
  let summary = "a box of the operand";
  let description = [{
    `y[i, ...] = x[starts[0] + i * steps[0], ...]` for i below sizes[0], and so
    for each dimension. `localize` scales starts and sizes to local shapes.

    *Constraints:* one start, size and step for each dimension; start >= 0,
    size >= 0, step >= 1; a size above 0 has start + (size - 1) * step within
    the dimension. y has the shape `sizes` and x's element type.

    ```mlir
    %y = train.slice %x starts [0, 64] sizes [8, 64] steps [1, 1] : tensor<8x192xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$starts, DenseI64ArrayAttr:$sizes,
                       DenseI64ArrayAttr:$steps);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `starts` $starts `sizes` $sizes `steps` $steps attr-dict `:` type($x)";
  let hasVerifier = 1;
}

def Train_PadOp : Train_Op<"pad", [Pure, Infer, FollowsPrecision, RuleLocal, Grad]> {
  let summary = "constant padding, `interior` elements between neighbours";
  let description = [{
    A dimension of size s becomes low + s + high + interior * (s - 1) long: what
    is not x is `value`. With value 0 it is the adjoint of `slice`, where
    interior = step - 1. `localize` scales low and high to local shapes.

    *Constraints:* one entry of low, high and interior for each dimension, none
    negative; y has x's element type and the padded shape.

    ```mlir
    %y = train.pad %x low [0, 64] high [0, 64] interior [0, 0] value 0.0 : tensor<8x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$low, DenseI64ArrayAttr:$high,
                       DenseI64ArrayAttr:$interior, F64Attr:$value);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `low` $low `high` $high `interior` $interior `value` $value attr-dict `:` type($x)";
  let hasVerifier = 1;
}

def Train_ConcatOp : Train_Op<"concat", [Pure, Infer, FollowsPrecision, Rule, Grad]> {
  let summary = "concatenation along one axis";
  let description = [{
    The inputs one behind the other along `axis`.

    *Constraints:* at least one input; one element type and rank; 0 <= axis <
    rank; all dimensions but the axis are equal. y has the sum of their sizes
    along the axis.

    ```mlir
    %y = train.concat %a, %b axis 1 : tensor<8x64xf32>, tensor<8x32xf32>
    ```
  }];
  let arguments = (ins Variadic<Tensor>:$inputs, I64Attr:$axis);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$inputs `axis` $axis attr-dict `:` type($inputs)";
  let hasVerifier = 1;
}

} // opDocGroup

let opDocGroup = Train_TableOps in {

def Train_GatherOp : Train_Op<"gather", [Pure, Infer, LowPrecision, RuleLocal, Grad]> {
  let summary = "slices of a table along one axis, chosen by integer ids";
  let description = [{
    y has the shape `table[:axis] + ids[batch:] + table[axis+1:]`. The first
    `batch` dimensions, up to the axis, are those of both: each of their elements
    has a table and ids of its own.

    On a device the table may hold only some of the axis: `rows` is then its
    global size, and `split_axis` the mesh axis whose coordinate says which part
    is here. Ids outside the local rows give zeros and the result is a partial
    sum.

    *Constraints:* ids are integers; 0 <= axis < rank of the table; 0 <= batch <=
    axis, and table and ids agree in their first `batch` dimensions; `rows` is at
    least what the table has along the axis. y has the table's element type.

    *Lifespan:* `localize` sets `rows` and `split_axis`.

    ```mlir
    %y = train.gather %table[%ids] axis 0 : tensor<96x64xf32>, tensor<8x32xi64>
    %z = train.gather %tables[%own] axis 1 {batch = 1 : i64} : tensor<8x5x4xf32>, tensor<8x2xi64>
    ```
  }];
  let arguments = (ins Tensor:$table, Integers:$ids, I64Attr:$axis, OptionalAttr<I64Attr>:$rows,
                       OptionalAttr<StrAttr>:$split_axis, DefaultValuedAttr<I64Attr, "0">:$batch);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$table `[` $ids `]` `axis` $axis attr-dict `:` type($table) `,` type($ids)";
  let hasVerifier = 1;
}

def Train_ScatterAddOp : Train_Op<"scatter_add", [Pure, AddsInPlace, RuleLocal, Grad]> {
  let summary = "adjoint of gather: sums slices into a zero table";
  let description = [{
    Each slice of `dy`, of the shape `table[:axis] + ids[batch:] +
    table[axis+1:]`, is added to the row of the table that its id names; the
    others stay zero. `rows` and `split_axis` as of `gather`: slices of rows that
    are not here are left out.

    *Constraints:* ids are integers; axis and batch as of `gather`; `dy` has the
    shape above and the table's element type; `rows` is at least what the table
    has along the axis.

    *Lifespan:* `localize` sets `rows` and `split_axis`.

    ```mlir
    %table = train.scatter_add %dy at %ids axis 0 : tensor<8x32x64xf32>, tensor<8x32xi64> to tensor<96x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, Integers:$ids, I64Attr:$axis, OptionalAttr<I64Attr>:$rows,
                       OptionalAttr<StrAttr>:$split_axis, DefaultValuedAttr<I64Attr, "0">:$batch);
  let results = (outs Tensor:$table);
  let assemblyFormat = "$dy `at` $ids `axis` $axis attr-dict `:` type($dy) `,` type($ids) `to` type($table)";
  let hasVerifier = 1;
}

def Train_CoalesceOp : Train_Op<"coalesce", [Pure, AllTypesMatch<["ids", "unique"]>, Rule]> {
  let summary = "the sums of the slices with one id: a row-sparse gradient";
  let description = [{
    dy [ids..., columns...], ids [ids...], of a table of `size` rows. `rows` and
    `unique` have the places of dy and ids. The first place of an id, in row-major
    order, holds the id and the sum of its slices, added in their order; all
    others hold id -1 and zeros. Together they are what `scatter_add` writes into
    the table, without the rows that stay zero: negative ids count from its end,
    slices of rows that it does not have are left out.

    *Constraints:* ids are integers; `unique` has the type of ids; dy begins with
    the dimensions of ids and has more; `rows` has the shape of dy; `size` is at
    least 1.

    *Lifespan:* made by `sparse-updates`.

    ```mlir
    %rows, %unique = train.coalesce %dy at %ids size 96 : tensor<8x32x64xf32>, tensor<8x32xi64> to tensor<8x32x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, Integers:$ids, I64Attr:$size);
  let results = (outs Tensor:$rows, Integers:$unique);
  let assemblyFormat = "$dy `at` $ids `size` $size attr-dict `:` type($dy) `,` type($ids) `to` type($rows)";
  let hasVerifier = 1;
}

def Train_SplitIdsOp : Train_Op<"split_ids", [Pure, AllTypesMatch<["ids", "prior", "delayed"]>, Rule]> {
  let summary = "ids of rows that other ids name too, and the others";
  let description = [{
    ids [...] and named [...] of a table of `size` rows. `prior` holds the rows
    of ids that some of `named` is of, `delayed` those that none is of, both at
    the places of ids; at the other places, and for ids of rows that the table does
    not have, they hold `size`. Negative ids count from the end.

    *Constraints:* ids are integers, `prior` and `delayed` have the type of ids
    and named its element type; `size` is at least 1.

    *Lifespan:* made by `merak-delay-rows`.

    ```mlir
    %prior, %delayed = train.split_ids %ids by %named size 96 : tensor<8x32xi64>, tensor<16x32xi64>
    ```
  }];
  let arguments = (ins Integers:$ids, Integers:$named, I64Attr:$size);
  let results = (outs Integers:$prior, Integers:$delayed);
  let assemblyFormat = "$ids `by` $named `size` $size attr-dict `:` type($ids) `,` type($named)";
  let hasVerifier = 1;
}

def Train_ScatterReduceOp : Train_Op<"scatter_reduce", [Pure, Rule, Grad]> {
  let summary = "the product, largest or smallest of the rows with one id";
  let description = [{
    updates [batch..., ids..., rest...], ids [batch..., ids...] (not negative),
    table [batch..., rows, rest...]: row r of the table is the product (`mul`),
    the largest (`max`) or the smallest (`min`) of the updates whose id is r. A
    row that no id names is zero. `batch` dimensions are those of all.

    *Constraints:* ids are integers; 0 <= batch < rank of the table, and table
    and ids agree in their first `batch` dimensions; `updates` has the shape
    `table[:batch] + ids[batch:] + table[batch+1:]` and the table's element type.

    ```mlir
    %table = train.scatter_reduce max %updates at %ids : tensor<5x4xf32>, tensor<5xi64> to tensor<9x4xf32>
    ```
  }];
  let arguments = (ins Tensor:$updates, Integers:$ids, Train_ScatterReduction:$kind,
                       DefaultValuedAttr<I64Attr, "0">:$batch);
  let results = (outs Tensor:$table);
  let assemblyFormat = "$kind $updates `at` $ids attr-dict `:` type($updates) `,` type($ids) `to` type($table)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::llvm::StringRef getReduction() { return stringifyScatterReduction(getKind()); }
  }];
}

def Train_TopKOp : Train_Op<"top_k", [Pure, Rule, Grad]> {
  let summary = "the k largest (or smallest) elements along the last dimension";
  let description = [{
    x [..., n]; values and indices [..., k] in order, the largest first, with
    `smallest` the smallest. indices are positions in the row; of equal elements
    the first comes first, a NaN counts as largest. The gradient adds to the
    chosen elements.

    *Constraints:* x has a last dimension; values and indices have x's shape but
    for the last dimension, in which they agree and are at most as large; values
    have x's element type, indices are integers.

    ```mlir
    %values, %indices = train.top_k %x : tensor<8x32xf32> -> tensor<8x4xf32>, tensor<8x4xi64>
    ```
  }];
  let arguments = (ins Tensor:$x, UnitAttr:$smallest);
  let results = (outs Tensor:$values, Integers:$indices);
  let assemblyFormat = "$x (`smallest` $smallest^)? attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}

} // opDocGroup

#endif
