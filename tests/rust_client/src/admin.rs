use crate::{Failure, Settings}; pub async fn run(_t: &str, _g: &str, _s: Settings) -> Result<(), Failure> { Ok(()) }
