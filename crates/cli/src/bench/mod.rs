use anyhow::Result;
use clap::Args;
use std::process::ExitCode;
#[derive(Debug, Args)]
pub struct BenchArgs {}
#[derive(Debug, Args)]
pub struct SideArgs {}
pub fn bench(_: &BenchArgs) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
pub fn side(_: &SideArgs) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
