//! Orders that must never change, since states of loaders continue them. Those of all samples are
//! also what a second implementation, in Python, gave.

use super::*;

/// The first samples, and a few from the middle on.
fn excerpt(shuffle: Shuffle, samples: u64, seed: u64, epoch: u64) -> [u64; 8] {
    let order = order(shuffle, samples, seed, epoch);
    let mut excerpt = [0; 8];
    assert_eq!(order.fill(0, &mut excerpt[..4]), 4);
    assert_eq!(order.fill(samples / 2, &mut excerpt[4..]), 4);
    excerpt
}

#[test]
fn orders_never_change() {
    assert_eq!(excerpt(Shuffle::Global, 10, 0, 0), [3, 0, 8, 7, 4, 2, 1, 5]);
    assert_eq!(
        excerpt(Shuffle::Global, 1_281_167, 42, 3),
        [328889, 304566, 680384, 98429, 251951, 1112973, 596133, 837335]
    );
    assert_eq!(
        excerpt(Shuffle::Global, 1_000_000_000_000, u64::MAX, 1),
        [
            493442277826,
            495531258323,
            172150292609,
            904668214547,
            429366133390,
            704104168640,
            672502640919,
            132965299251
        ]
    );
    assert_eq!(excerpt(block(10, 3), 995, 42, 3), [965, 838, 964, 968, 411, 340, 346, 344]);
    assert_eq!(
        excerpt(block(1024, 64), 1_000_000_000_000, 7, 0),
        [
            318811792936,
            641109518477,
            678639562425,
            178150197373,
            729257295342,
            819702072162,
            742196263787,
            571400220075
        ]
    );
}
