// Says what GitHub's own language service finds in workflows and actions, given as paths; ends with 1 if it finds any.
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { registerLogger, validate } from "@actions/languageservice";
import { TextDocument } from "vscode-languageserver-textdocument";

const said = (line) => {
  console.log(line);
  process.exitCode = 1;
};
// Where it fails itself it finds nothing, and only logs that.
registerLogger({ error: said, warn: said, info() {}, log() {} });

const paths = process.argv.slice(2);
if (!paths.length) said("workflows.mjs: no files given");
for (const path of paths) {
  const [root] = resolve(path).split("/.github/workflows/");
  const fileProvider = {
    getFileContent: async (file) => ({ name: file.path, content: readFileSync(join(root, file.path), "utf8") }),
  };
  const document = TextDocument.create(`file://${resolve(path)}`, "yaml", 1, readFileSync(path, "utf8"));
  for (const { range, message } of await validate(document, { fileProvider })) {
    said(`${path}:${range.start.line + 1}: ${message}`);
  }
}
