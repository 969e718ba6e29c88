//! The behaviour of a hostile target for one command.

use crate::input::Input;

/// The treatment of a command's data and of its response.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Behaviour {
    pub(super) data: DataFault,
    pub(super) answer: AnswerFault,
    /// The response is sent before the data.
    pub(super) hasty: bool,
}

/// The fault in the transfer of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DataFault {
    #[default]
    None,
    /// No data is written.
    Missing,
    /// The data begins this many bytes later, or earlier.
    Shifted(i32),
    /// The data is this many bytes longer.
    Longer(u16),
    /// The data goes by another key.
    Key(u32),
}

/// The fault in the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AnswerFault {
    #[default]
    None,
    /// The response is missing, or comes later.
    Missing,
    /// Another status, nothing being done.
    Status(u16),
    /// Another result than the command's.
    Result(u64),
    /// The identifier of another command.
    Cid(u16),
    /// The response is sent twice.
    Twice,
    /// This many bytes, with this value in all of them but the identifier.
    Bytes(usize, u8),
    /// The response invalidates a key.
    Invalidates(u32),
    /// The connection is ended instead.
    Disconnect,
}

impl Behaviour {
    /// The behaviour that some bytes stand for.
    pub(super) fn decode(input: &mut Input<'_>) -> Self {
        let [data, answer, hasty] = input.array();
        let number = input.u32();
        let result = input.u64();
        let data = match data % 8 {
            1 => DataFault::Missing,
            2 => DataFault::Shifted(number as i32),
            3 => DataFault::Longer(number as u16 % 4096),
            4 => DataFault::Key(number),
            _ => DataFault::None,
        };
        let answer = match answer % 12 {
            1 => AnswerFault::Missing,
            2 => AnswerFault::Status(result as u16),
            3 => AnswerFault::Result(result),
            4 => AnswerFault::Cid(result as u16),
            5 => AnswerFault::Twice,
            6 => AnswerFault::Bytes(result as usize % 40, hasty),
            7 => AnswerFault::Invalidates(result as u32),
            8 => AnswerFault::Disconnect,
            _ => AnswerFault::None,
        };
        Self { data, answer, hasty: hasty & 1 == 1 }
    }

    /// Whether a command that it lets succeed was carried out.
    pub(super) fn is_truthful(&self) -> bool {
        let answer = matches!(
            self.answer,
            AnswerFault::None | AnswerFault::Missing | AnswerFault::Disconnect
        );
        self.data == DataFault::None && answer && !self.hasty
    }
}
