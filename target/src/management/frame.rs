//! Splits a stream into frames: JSON objects or arrays that follow each other without separators.

use std::ops::Range;

/// Longest request in bytes. A saved configuration takes about 500 bytes for each namespace.
pub(super) const MAX_FRAME_BYTES: usize = 16 << 20;

/// Finds the end of each object or array in a stream by counting brackets. It examines each byte
/// once, however the stream is split into reads.
#[derive(Debug, Default)]
pub(super) struct FrameSplitter {
    buffer: Vec<u8>,
    /// Number of bytes of the buffer that have been examined.
    seen: usize,
    /// Offset in the buffer at which the incomplete frame starts.
    start: usize,
    /// Number of open brackets.
    depth: usize,
    text: Text,
}

/// Whether the scan is inside a JSON string, where brackets do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Inside,
    /// Inside a string, after a backslash.
    Escaped,
}

/// Error after which the rest of the stream cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    /// A character other than `{`, `[` or white space follows a frame.
    #[error("Parse error: a JSON object is expected")]
    NotAnObject,
    /// A frame exceeds [`MAX_FRAME_BYTES`].
    #[error("Parse error: a request has more than {MAX_FRAME_BYTES} bytes")]
    TooLong,
}

impl FrameSplitter {
    /// Appends bytes of the stream. The caller must have taken all complete frames before.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.seen -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame, or `None` if it is incomplete. Errors are final.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let found = self.find()?;
        Ok(found.map(|range| &self.buffer[range]))
    }

    fn find(&mut self) -> Result<Option<Range<usize>>, FrameError> {
        while let Some(&byte) = self.buffer.get(self.seen) {
            if self.depth == 0 {
                match byte {
                    b' ' | b'\t' | b'\r' | b'\n' => {
                        self.seen += 1;
                        self.start = self.seen;
                        continue;
                    }
                    b'{' | b'[' => {}
                    _ => return Err(FrameError::NotAnObject),
                }
            }
            if self.seen - self.start >= MAX_FRAME_BYTES {
                return Err(FrameError::TooLong);
            }
            self.seen += 1;
            self.track_nesting(byte);
            if self.depth == 0 {
                let range = self.start..self.seen;
                self.start = self.seen;
                return Ok(Some(range));
            }
        }
        Ok(None)
    }

    fn track_nesting(&mut self, byte: u8) {
        match (self.text, byte) {
            (Text::Escaped, _) => self.text = Text::Inside,
            (Text::Inside, b'\\') => self.text = Text::Escaped,
            (Text::Inside, b'"') => self.text = Text::Outside,
            (Text::Inside, _) => {}
            (Text::Outside, b'"') => self.text = Text::Inside,
            (Text::Outside, b'{' | b'[') => self.depth += 1,
            (Text::Outside, b'}' | b']') => self.depth -= 1,
            (Text::Outside, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Frames of a stream that arrives in these pieces, and its error.
    fn split(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Option<FrameError>) {
        let mut splitter = FrameSplitter::default();
        let mut frames = Vec::new();
        for piece in pieces {
            splitter.push(piece);
            loop {
                match splitter.next() {
                    Ok(Some(frame)) => frames.push(frame.to_vec()),
                    Ok(None) => break,
                    Err(error) => return (frames, Some(error)),
                }
            }
        }
        (frames, None)
    }

    #[test]
    fn brackets_in_strings_end_no_frame() {
        let text = br#" {"a":"}\"]","b":[{}]}[1]{"c":"\\"} "#;
        let (frames, error) = split(&[text]);
        let expected: [&[u8]; 3] = [br#"{"a":"}\"]","b":[{}]}"#, b"[1]", br#"{"c":"\\"}"#];
        assert_eq!((frames, error), (expected.map(<[u8]>::to_vec).to_vec(), None));
    }

    #[test]
    fn what_is_no_object_ends_the_stream() {
        for text in ["12", "\"a\"", "}", "nul", "\0", "{}x"] {
            assert_eq!(split(&[text.as_bytes()]).1, Some(FrameError::NotAnObject), "{text}");
        }
    }

    #[test]
    fn an_endless_frame_is_refused() {
        let mut text = vec![b'['; MAX_FRAME_BYTES];
        assert_eq!(split(&[&text]), (Vec::new(), None));
        text.push(b'[');
        assert_eq!(split(&[&text]).1, Some(FrameError::TooLong));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_frames(
            text in "[ {}\\[\\]\"\\\\a1,:\n]{0,64}",
            cuts in prop::collection::vec(0_usize..64, 0..8),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|at| at.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
            prop_assert_eq!(split(&pieces), split(&[bytes]));
        }
    }
}
