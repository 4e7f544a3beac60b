// The language service imports JSON as bundlers allow it; Node wants to be told the type.
import { register } from "node:module";

const hook = `export const load = (url, context, next) =>
  next(url, url.endsWith(".json") ? { ...context, importAttributes: { type: "json" } } : context);`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);
