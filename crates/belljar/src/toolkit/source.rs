//! Resources and prompts of toolkits, as the doors ask for them.

use async_trait::async_trait;
use belljar_tools::CallContext;
use rmcp::{
    ErrorData,
    model::{
        GetPromptResult, JsonObject, Prompt as McpPrompt, PromptArgument, PromptMessage, ReadResourceResult,
        Resource as McpResource, ResourceContents, Role,
    },
};
use serde_json::json;

use super::{Prompt, Resource, Toolkit};
use crate::offers::Source;

#[async_trait]
impl Source for Toolkit {
    async fn resources(&self, _cx: &CallContext) -> Vec<McpResource> {
        self.resources.iter().map(|resource| resource.listed()).collect()
    }

    async fn read(&self, _cx: &CallContext, uri: &str) -> Option<Result<ReadResourceResult, ErrorData>> {
        let resource = self.resources.iter().find(|resource| resource.uri == uri)?;
        Some(match resource.read().await {
            Ok(text) => {
                let contents = ResourceContents::text(text, uri).with_mime_type(resource.mime.clone());
                Ok(ReadResourceResult::new(vec![contents]))
            }
            Err(why) => Err(ErrorData::internal_error(why, Some(json!({ "uri": uri })))),
        })
    }

    fn has_prompts(&self) -> bool {
        !self.prompts.is_empty()
    }

    async fn prompts(&self) -> Vec<McpPrompt> {
        self.prompts.iter().map(|prompt| prompt.listed()).collect()
    }

    async fn prompt(
        &self,
        _cx: &CallContext,
        name: &str,
        arguments: Option<&JsonObject>,
    ) -> Option<Result<GetPromptResult, ErrorData>> {
        let prompt = self.prompts.iter().find(|prompt| prompt.name == name)?;
        let filled = prompt.fill(arguments.cloned().unwrap_or_default());
        let filled = filled.map(|text| GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]));
        Some(filled.map_err(|why| ErrorData::invalid_params(why, None)))
    }
}

impl Resource {
    fn listed(&self) -> McpResource {
        let mut listed = McpResource::new(&self.uri, &self.name);
        listed.description = self.description.clone();
        listed.mime_type = Some(self.mime.clone());
        listed
    }
}

impl Prompt {
    fn listed(&self) -> McpPrompt {
        let argument = |argument: &super::prompts::Argument| {
            let mut listed = PromptArgument::new(&argument.name).with_required(argument.required);
            listed.description = argument.description.clone();
            listed
        };
        let arguments: Vec<_> = self.arguments.iter().map(argument).collect();
        let mut listed = McpPrompt::new(&self.name, self.description.as_deref(), Some(arguments));
        listed.title = self.title.clone();
        listed
    }
}
