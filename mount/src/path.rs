//! Where in a tree of folders the file of a namespace is, by its name.

/// The longest part of a path that Linux takes, in bytes.
const PART_BYTES: usize = 255;

/// The parts of a name that is a path: folders, and the file last. `None` for a name that is no
/// path below a folder: it is empty, has an empty part (`/a`, `a//b`, `a/`), a part `.` or `..`, a
/// part of more than 255 bytes, or a zero byte.
pub(crate) fn parts(name: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = name.split('/').collect();
    let is_part = |part: &&str| {
        !matches!(*part, "" | "." | "..") && part.len() <= PART_BYTES && !part.contains('\0')
    };
    parts.iter().all(is_part).then_some(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_with_slashes_are_paths() {
        assert_eq!(parts("train.bin"), Some(vec!["train.bin"]));
        assert_eq!(parts("a/b c/ä.tar"), Some(vec!["a", "b c", "ä.tar"]));
        assert_eq!(parts("..."), Some(vec!["..."]));
        for name in ["", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\0b"] {
            assert_eq!(parts(name), None, "{name:?}");
        }
        assert!(parts(&"n".repeat(255)).is_some());
        assert_eq!(parts(&format!("a/{}", "n".repeat(256))), None);
    }

    proptest! {
        #[test]
        fn a_path_is_the_name(name in any::<String>()) {
            if let Some(parts) = parts(&name) {
                prop_assert_eq!(parts.join("/"), name);
            }
        }
    }
}
