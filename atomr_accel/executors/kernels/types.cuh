// Integers by their widths.
#pragma once

typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;
