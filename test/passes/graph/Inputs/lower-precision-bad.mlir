module {
  train.parameter @w : tensor<4xbf16> trainable
  func.func @model(%x: tensor<8x4xbf16> {train.name = "x"}) -> tensor<8x4xbf16> {
    %w = train.read @w : tensor<4xbf16>
    %y = train.mul %x, %w : tensor<8x4xbf16>, tensor<4xbf16>
    return %y : tensor<8x4xbf16>
  }
}
