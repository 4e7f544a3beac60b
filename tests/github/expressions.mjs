// What GitHub's own parser and evaluator make of a value in a step of a workflow: a question a line, an answer a line.
// {value, contexts} asks for the value, {value, contexts, status} whether a condition of that value holds.
import { createInterface } from "node:readline";
import { Evaluator, Lexer, Parser, data } from "@actions/expressions";
import { truthy } from "@actions/expressions/result";
import { NoOperationTraceWriter, isBasicExpression, parseWorkflow } from "@actions/workflow-parser";
import { ensureStatusFunction } from "@actions/workflow-parser/model/converter/if-condition";
import { TemplateToken } from "@actions/workflow-parser/templates/tokens/template-token";

function expressionOf(value, key) {
  const jobs = { a: { "runs-on": "a", steps: [key === "if" ? { run: "a", if: value } : { run: "a", env: { a: value } }] } };
  const content = JSON.stringify({ on: "push", jobs }); // JSON is YAML
  const { context, value: root } = parseWorkflow({ name: "a", content }, new NoOperationTraceWriter());
  const [fault] = context.errors.getErrors();
  if (fault) throw new Error(fault.rawMessage);
  for (const [, token, name] of TemplateToken.traverse(root)) {
    if (name?.toString() === (key === "if" ? "if" : "a") && token.isScalar) {
      const given = isBasicExpression(token) ? token.expression : token.value;
      if (key === "if") return ensureStatusFunction(given, token.definitionInfo);
      return isBasicExpression(token) ? given : `'${given.replaceAll("'", "''")}'`;
    }
  }
  throw new Error("no value");
}

function answered({ value, contexts, status }) {
  const functions = Object.entries(status ?? {}).map(([name, holds]) => {
    return { name, minArgs: 0, maxArgs: 0, call: () => new data.BooleanData(holds) };
  });
  const source = expressionOf(value, status ? "if" : "env");
  const tree = new Parser(new Lexer(source).lex().tokens, Object.keys(contexts), functions).parse();
  const known = JSON.parse(JSON.stringify(contexts), data.reviver);
  const found = new Evaluator(tree, known, new Map(functions.map((one) => [one.name, one]))).evaluate();
  return { value: status ? truthy(found) : JSON.parse(JSON.stringify(found, data.replacer)), text: found.coerceString() };
}

for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(JSON.stringify(answered(JSON.parse(line))));
  } catch (error) {
    console.log(JSON.stringify({ error: error.message }));
  }
}
