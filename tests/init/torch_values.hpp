#pragma once

// What torch draws. Every table is
//   python3 -c "import torch; EXPRESSION; print(*[v.hex() for v in x.tolist()])"
// with the expression above it, x its last value. Written with torch 1.13.0 on a machine with AVX2; torch 2.15.0 prints
// the same.

namespace torch_values {

// torch.manual_seed(0); x = torch.rand(6)
inline constexpr float rand[] = {0x1.fc2ab00000000p-2f, 0x1.89545e0000000p-1f, 0x1.6a67500000000p-4f,
                                 0x1.0e66000000000p-3f, 0x1.3acd0c0000000p-2f, 0x1.44a5f60000000p-1f};

// torch.manual_seed(0); x = torch.empty(6).uniform_(-0.1234567, 0.3)
inline constexpr float uniform[] = {0x1.6311600000000p-4f,  0x1.9d64940000000p-3f, -0x1.6037680000000p-4f,
                                    -0x1.14acb00000000p-4f, 0x1.b8a2980000000p-8f, 0x1.290f060000000p-3f};

// torch.manual_seed(0); x = torch.rand(6, dtype=torch.float64)
inline constexpr double rand_double[] = {0x1.f0aac97c4aa2fp-1, 0x1.6a675d821ccc0p-1, 0x1.d6687b744a5f6p-2,
                                         0x1.d76c3d8e57d67p-1, 0x1.4a4099fa1ded3p-1, 0x1.951156266d6f2p-1};

// torch.manual_seed(0); x = torch.empty(6, dtype=torch.float64).uniform_(-0.1234567, 0.3)
inline constexpr double uniform_double[] = {0x1.2636e272566c1p-2, 0x1.690288a31aa82p-3, 0x1.231c7b94e0fa4p-4,
                                            0x1.10d5aad07e753p-2, 0x1.328d0ba1f8935p-3, 0x1.b146761be4d7ep-3};

// torch.manual_seed(2**32 + 7); x = torch.rand(3)
inline constexpr float rand_seed_7[] = {0x1.11e15e0000000p-1f, 0x1.9726200000000p-3f, 0x1.5184320000000p-1f};

// torch.manual_seed(0); x = torch.randn(4)
inline constexpr float randn_4[] = {0x1.8a7eb80000000p+0f, -0x1.2c78a00000000p-2f, -0x1.16e2920000000p+1f,
                                    0x1.23096c0000000p-1f};

// torch.manual_seed(0); x = torch.randn(16)
inline constexpr float randn_16[] = {
    -0x1.20370a0000000p+0f, -0x1.2701140000000p+0f, -0x1.0097ac0000000p-2f, -0x1.bc4aba0000000p-2f,
    0x1.b28a2a0000000p-1f,  0x1.624f060000000p-1f,  -0x1.4398da0000000p-2f, -0x1.0ebf820000000p+1f,
    0x1.4a02700000000p-2f,  -0x1.4369e80000000p+0f, 0x1.6661fe0000000p-2f,  0x1.3b87760000000p-2f,
    0x1.eadeee0000000p-4f,  0x1.3cd7260000000p+0f,  0x1.1de51c0000000p+0f,  -0x1.fa6cf80000000p-3f};

// torch.manual_seed(0); x = torch.randn(37)
inline constexpr float randn_37[] = {
    -0x1.20370a0000000p+0f, -0x1.2701140000000p+0f, -0x1.0097ac0000000p-2f, -0x1.bc4aba0000000p-2f,
    0x1.b28a2a0000000p-1f,  0x1.624f060000000p-1f,  -0x1.4398da0000000p-2f, -0x1.0ebf820000000p+1f,
    0x1.4a02700000000p-2f,  -0x1.4369e80000000p+0f, 0x1.6661fe0000000p-2f,  0x1.3b87760000000p-2f,
    0x1.eadeee0000000p-4f,  0x1.3cd7260000000p+0f,  0x1.1de51c0000000p+0f,  -0x1.fa6cf80000000p-3f,
    -0x1.5a47840000000p+0f, -0x1.b2288c0000000p+0f, 0x1.2220080000000p-1f,  0x1.9646ba0000000p-1f,
    0x1.329b160000000p-1f,  0x1.cc6fac0000000p-4f,  0x1.4815f00000000p-1f,  0x1.c3be780000000p-2f,
    -0x1.ba16840000000p-3f, -0x1.7c2f460000000p-1f, 0x1.201d040000000p-1f,  0x1.09dbc40000000p-2f,
    -0x1.6445aa0000000p-3f, 0x1.26aeaa0000000p+1f,  -0x1.78096e0000000p+0f, -0x1.96313c0000000p+0f,
    0x1.3406780000000p+0f,  0x1.5a410e0000000p-4f,  -0x1.333c560000000p+0f, -0x1.39a35c0000000p-8f,
    -0x1.09411a0000000p-1f};

// torch.manual_seed(0); x = torch.randn(20, dtype=torch.float64)
inline constexpr double randn_double_20[] = {
    -0x1.27bb92e9262dcp+1, -0x1.7e35794939460p-2, -0x1.0f91ae8d685b6p+0, 0x1.ffbfb0ada994bp-1, -0x1.471a3c0e2f22ap-6,
    0x1.aeb1b572b6a04p-3,  0x1.6ae2402b7b62bp-3,  -0x1.a9389d082941dp-1, 0x1.e8e503666016dp-3, 0x1.779107c3069d9p-1,
    -0x1.5266d8f957969p+0, 0x1.50977a45ee462p+0,  -0x1.5fbef2bc4be3bp-1, 0x1.7cf270386ca66p+0, -0x1.cb2d8340fb171p-2,
    -0x1.c8318cc163de5p-1, 0x1.5986ed8e63e98p-1,  0x1.0bff5e8d733a2p+0,  0x1.3bff1c51bd9a4p-3, -0x1.7ff1c81c48b11p-1};

// torch.manual_seed(1); x = torch.empty(16).normal_(0.5, 2)
inline constexpr float normal_16[] = {
    -0x1.468d740000000p+1f, -0x1.001e620000000p+0f, -0x1.9dad2c0000000p-1f, -0x1.5c07320000000p+1f,
    0x1.32db8c0000000p-2f,  -0x1.6fcf380000000p-1f, -0x1.75a4b60000000p+0f, -0x1.5bedbc0000000p+1f,
    -0x1.d93c700000000p-1f, 0x1.1b81740000000p+0f,  -0x1.0dfc240000000p+0f, -0x1.7d7c000000000p-9f,
    0x1.c652000000000p-5f,  0x1.efe6aa0000000p+1f,  0x1.e9e84a0000000p-1f,  0x1.6f6dec0000000p+0f};

// torch.manual_seed(1); x = torch.empty(3, dtype=torch.float64).normal_(0.5, 2)
inline constexpr double normal_double_3[] = {0x1.d29cc078113dap+0, 0x1.08aa46815c7f2p+0, 0x1.3f2852bc253afp-1};

// torch.manual_seed(3); x = torch.cat([torch.randn(3), torch.rand(2), torch.randn(17), torch.randn(2)])
inline constexpr float sequence[] = {
    0x1.9b47000000000p-1f,  0x1.660f0c0000000p-3f,  0x1.6c744c0000000p-4f,  0x1.3057fa0000000p-1f,
    0x1.c695260000000p-1f,  0x1.41e6f40000000p-1f,  -0x1.139b080000000p-5f, -0x1.611f220000000p-2f,
    0x1.f980520000000p-2f,  -0x1.3dc5500000000p-4f, -0x1.ce2c5e0000000p+0f, -0x1.e774a80000000p-2f,
    -0x1.2bf1440000000p-2f, -0x1.6471860000000p-2f, 0x1.5a4e160000000p+0f,  0x1.7e9a460000000p-2f,
    0x1.b7a1960000000p-7f,  0x1.8c1ee40000000p-1f,  -0x1.bf76220000000p-4f, -0x1.15b9460000000p-2f,
    0x1.220e1c0000000p-3f,  0x1.0940a40000000p-3f,  -0x1.3a39400000000p-1f, -0x1.be4bee0000000p-3f};

// torch.manual_seed(4); x = torch.empty(17, 2)[:, 0].normal_()
inline constexpr float strided[] = {-0x1.9af3640000000p+0f, 0x1.dc21780000000p-3f, 0x1.1eb4100000000p+1f,
                                    0x1.b1d07e0000000p-1f,  0x1.335d6c0000000p+0f, -0x1.9b30020000000p-2f,
                                    -0x1.6d0fa00000000p+0f, 0x1.ced0240000000p-1f, 0x1.b6205a0000000p-1f,
                                    0x1.60b5000000000p-1f,  0x1.c51cd80000000p-1f, 0x1.c548dc0000000p+0f,
                                    -0x1.4b8ad00000000p-4f, 0x1.a3f4300000000p-5f, -0x1.bccda80000000p-1f,
                                    -0x1.1a5d320000000p-2f, -0x1.458f920000000p+0f};

// torch.manual_seed(0); m = torch.nn.Linear(64, 32); x = torch.cat([m.weight.flatten()[-3:], m.bias[-3:],
// torch.randn(16, 64)[0, :4]])
inline constexpr float linear[] = {0x1.665d400000000p-6f,  0x1.4e26140000000p-4f,  -0x1.ac34300000000p-5f,
                                   -0x1.06d96c0000000p-4f, 0x1.b6a7800000000p-6f,  -0x1.dabff00000000p-5f,
                                   0x1.89fac80000000p-3f,  -0x1.6bfac40000000p-3f, 0x1.4914b60000000p-2f,
                                   0x1.e11be80000000p+0f};

// torch.manual_seed(5); x = torch.nn.init.xavier_uniform_(torch.empty(4, 6), gain=5/3).flatten()[:6]
inline constexpr float xavier_uniform[] = {0x1.b495f60000000p-1f, -0x1.ee45f40000000p-1f, 0x1.0d55420000000p+0f,
                                           0x1.a6efc40000000p-1f, 0x1.15af0e0000000p+0f,  -0x1.fac9640000000p-1f};

// torch.manual_seed(5); x = torch.nn.init.xavier_normal_(torch.empty(4, 6)).flatten()[:6]
inline constexpr float xavier_normal[] = {0x1.a5d82e0000000p-1f,  0x1.db3ece0000000p-3f, -0x1.87fc000000000p-1f,
                                          -0x1.85920e0000000p-1f, 0x1.ce64ac0000000p-1f, -0x1.ec0b5e0000000p-4f};

// torch.manual_seed(5); x = torch.nn.init.kaiming_uniform_(torch.empty(8, 3, 2, 2), nonlinearity='relu').flatten()[:6]
inline constexpr float kaiming_uniform[] = {0x1.de417c0000000p-2f, -0x1.0eb9800000000p-1f, 0x1.270a200000000p-1f,
                                            0x1.cf4dc80000000p-2f, 0x1.302ff80000000p-1f,  -0x1.15941a0000000p-1f};

// torch.manual_seed(5); x = torch.nn.init.kaiming_normal_(torch.empty(8, 3, 2, 2), mode='fan_out',
// nonlinearity='relu').flatten()[:6]
inline constexpr float kaiming_normal[] = {0x1.d7a2ee0000000p-2f,  0x1.09ab940000000p-3f, -0x1.b6407a0000000p-2f,
                                           -0x1.b38d980000000p-2f, 0x1.027c560000000p-1f, -0x1.130faa0000000p-4f};

}  // namespace torch_values
