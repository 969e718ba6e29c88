//! Escapes text from remote peers in log lines.

use std::fmt::{self, Write as _};

use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};

/// Text that is displayed on one line and cannot control a terminal: control characters, line
/// separators and text direction marks are escaped as in Rust.
pub(super) struct OneLine<'a>(pub(super) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '\u{61c}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => write!(f, "{}", character.escape_unicode()),
            _ if character.is_control() => write!(f, "{}", character.escape_default()),
            _ => f.write_char(character),
        })
    }
}

/// Formatter that escapes the message and fields of each line as [`OneLine`] does.
pub(super) struct OneLineFields;

impl<'writer> FormatFields<'writer> for OneLineFields {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        write!(writer, "{}", OneLine(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::OneLine;

    #[test]
    fn what_would_leave_the_line_is_escaped() {
        let text = "a\nb\r\u{1b}[31m\u{85}\u{2028}\u{202e}\u{7f}\u{0}";
        let expected = r"a\nb\r\u{1b}[31m\u{85}\u{2028}\u{202e}\u{7f}\u{0}";
        assert_eq!(OneLine(text).to_string(), expected);
        assert_eq!(OneLine("Grüße, 世界").to_string(), "Grüße, 世界");
    }
}
