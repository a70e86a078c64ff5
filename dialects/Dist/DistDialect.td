// Meshes with named axes, layouts and collectives.
#ifndef MERAK_DIST_DIALECT
#define MERAK_DIST_DIALECT
include "mlir/IR/OpBase.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "dialects/Train/TrainInterfaces.td"

def Dist_Dialect : Dialect {
  let name = "dist";
  let cppNamespace = "::merak::dist";
  let summary = "layouts over named mesh axes, and collectives";
  let description = [{
    Before the shard phase the collectives stand in the global view: operand and
    result have the global type and only their layouts differ. After it types
    are local.

    Layouts are the discardable attribute `dist.layouts`, one for each result of
    an op; the mesh is the module's `dist.mesh`. Passes ask of two traits
    (`dialects/Dist/Traits.h`), which the entry of an op lists: a `Conversion`
    makes another layout of a value, and `axes` are the mesh axes that it
    changes; a `Collective` is one that communicates.
  }];
  let useDefaultAttributePrinterParser = 1;
}

def Dist_MeshAttr : AttrDef<Dist_Dialect, "Mesh"> {
  let mnemonic = "mesh";
  let summary = "named axes with sizes, major to minor";
  let description = [{
    `#dist.mesh<pp = 2, dp = 2, tp = 2, mb = 4>`; `mb` is the microbatch axis.
    Parts of an axis stand in its place, major to minor, as `"tp.0" = 2, "tp.1" = 4`.

    *Constraints:* each axis once, of size 1 or more.
  }];
  let parameters = (ins ArrayRefParameter<"::mlir::StringAttr">:$axes, ArrayRefParameter<"int64_t">:$sizes);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    // Size of an axis, of all its parts where the mesh has those; 1 for an
    // axis the mesh lacks.
    int64_t getSize(::llvm::StringRef axis) const;
    // The axis, or the parts of it that the mesh has, major to minor, without
    // those of size 1.
    ::llvm::SmallVector<::llvm::StringRef> getAxesOn(::llvm::StringRef axis) const;
  }];
}

def Dist_LayoutAttr : AttrDef<Dist_Dialect, "Layout"> {
  let mnemonic = "layout";
  let summary = "which part of a tensor a device holds";
  let description = [{
    `#dist.layout<[8 over (mb, pp) * 32, 3 * 4 over (tp) * 16] partial(dp)>`: a dimension is
    a product of factors, major to minor, each split over axes. Over the axes
    behind `partial` the values are summands.

    *Constraints:* sizes of factors are not negative; an axis stands once in the
    whole layout.
  }];
  // dims: one array per dimension of [size, axis, axis, ...] arrays.
  let parameters = (ins "::mlir::ArrayAttr":$dims, "::mlir::ArrayAttr":$partial);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    static LayoutAttr get(::mlir::MLIRContext *context, const ::merak::layout::Layout &layout);
    ::merak::layout::Layout getLayout() const;
    // Local shape on `mesh`; sizes must divide.
    ::llvm::SmallVector<int64_t> getLocalShape(MeshAttr mesh) const;
  }];
}

def Dist_ClusterAttr : AttrDef<Dist_Dialect, "Cluster"> {
  let mnemonic = "cluster";
  let summary = "the machine that a plan is for";
  let description = [{
    The module's attribute `dist.cluster`, from the stage phase on.

    `#dist.cluster<backend = "cuda", memory_bytes = 85899345920, document = "{...}">`

    What passes decide by: the backend of the devices and the bytes that one has
    (0: not limited). `document` is the cluster file (docs/CostModel.md), as the plan
    takes it along; the cost model reads it, and what prices asks that.
  }];
  let parameters = (ins StringRefParameter<"cpu or cuda">:$backend,
                        DefaultValuedParameter<"int64_t", "0">:$memory_bytes,
                        StringRefParameter<"cluster file", "\"\"">:$document);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    // Of a module; one without the attribute is for CPU ranks.
    static ClusterAttr of(::mlir::Operation *module);
    bool isCuda() const { return getBackend() == "cuda"; }
  }];
}
#endif
