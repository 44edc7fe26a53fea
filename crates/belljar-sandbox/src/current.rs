//! The sandbox that a caller means who names none.

use belljar_proto::Language;

use crate::{Caller, ContextInfo, Error, Flavor, NewContext, Policy, SandboxService};

/// The name is all that tells these contexts from others. It is kept with the sandbox, so a later server knows it too.
const PREFIX: &str = "sandbox-";
const DIGITS: usize = 8;

impl SandboxService {
    /// A context that is the caller's current sandbox from now on.
    pub async fn create_sandbox(
        &self,
        caller: &Caller,
        language: Language,
        template: Option<String>,
        flavor: Option<Flavor>,
        network: Option<Policy>,
    ) -> Result<ContextInfo, Error> {
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let name = format!("{PREFIX}{}", &unique[..DIGITS]);
        self.create_context(
            caller,
            NewContext { name, language, template, description: String::new(), flavor, network },
        )
        .await
    }
}

pub(crate) fn is_sandbox(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|rest| rest.len() == DIGITS && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_person_chose_is_no_sandbox() {
        assert!(is_sandbox("sandbox-1a2b3c4d"));
        for other in
            ["sandbox-1", "sandbox-analysis", "sandbox-1a2b3c4d5", "session-1a2b3c4d", "sandbox-", ""]
        {
            assert!(!is_sandbox(other), "{other}");
        }
    }
}
