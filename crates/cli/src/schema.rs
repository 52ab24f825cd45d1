//! `schema`: the format of scenarios, for editors.

use super::failure::Failure;
use super::output;
use sluicenet_scenario::json_schema;

pub(super) fn main() -> Result<(), Failure> {
    output::json(&json_schema());
    Ok(())
}
