//! placeholder
use anyhow::Result;
use clap::Args;
use std::process::ExitCode;
/// What `tautline doctor` is told.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// One JSON object
    #[arg(long)]
    json: bool,
}
pub fn doctor(_: &DoctorArgs) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
