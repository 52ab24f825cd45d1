//! What an attachment asks the switch.

use super::AttachError;
use crate::control::{About, Answer, Refusal, Request, ask, reached_nobody};
use std::path::Path;

/// The name and the MTU of the switch.
pub(super) fn about(control: &Path) -> Result<About, AttachError> {
    match answer(control, &Request::About)? {
        // A namespace is named after it, with the privileges of whoever asks; the switch has none.
        Answer::About(about) if is_file_name(&about.name) => Ok(about),
        Answer::About(about) => Err(AttachError::Refused(format!("{:?}: this is no name of a switch", about.name))),
        other => Err(AttachError::Refused(format!("an answer that is none: {other:?}"))),
    }
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0'])
}

pub(super) fn request(control: &Path, request: &Request) -> Result<String, AttachError> {
    match answer(control, request)? {
        Answer::Ok(text) => Ok(text),
        other => Err(AttachError::Refused(format!("an answer that is none: {other:?}"))),
    }
}

/// The answer of a switch that has done what it was asked for.
fn answer(control: &Path, request: &Request) -> Result<Answer, AttachError> {
    match ask(control, request) {
        Ok(Answer::Error(why)) => Err(AttachError::Refused(why)),
        Ok(Answer::Refused { error, reason: Refusal::NoSuchPort }) => Err(AttachError::NoSuchPort(error)),
        Ok(Answer::Refused { error, reason: Refusal::Busy }) => Err(AttachError::Busy(error)),
        Ok(answer) => Ok(answer),
        Err(e) if reached_nobody(&e) => Err(AttachError::NoSwitch(e)),
        Err(e) => Err(AttachError::Unanswered(e)),
    }
}

/// Whether a switch may have done what it was asked for, though this error came.
pub(super) fn may_be_done(e: &AttachError) -> bool {
    matches!(e, AttachError::Unanswered(_))
}
