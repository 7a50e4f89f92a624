// The dashboard's scripts. What is undefined or of the wrong type is found by tsc, which
// knows the names that the scripts share.
import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["node_modules/", "**/.venv/", "build/", "dist/", "test-output/"] },
  js.configs.recommended,
  {
    files: ["dashboard/**/*.js", "tests/dashboard/*.js"],
    languageOptions: {
      ecmaVersion: 2022,
      sourceType: "script",
      globals: globals.browser,
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "no-undef": "off",
      "array-callback-return": "error",
      "consistent-return": "error",
      "default-case-last": "error",
      "eqeqeq": "error",
      "max-len": ["error", { code: 140, ignoreTemplateLiterals: true, ignoreStrings: true }],
      "max-lines": ["error", 400],
      "max-lines-per-function": ["error", { max: 70, skipComments: true, IIFEs: false }],
      "no-eval": "error",
      "no-implicit-globals": "error",
      "no-implied-eval": "error",
      "no-loop-func": "error",
      "no-promise-executor-return": "error",
      "no-shadow": "error",
      "no-unmodified-loop-condition": "error",
      "no-unreachable-loop": "error",
      "no-unused-expressions": "error",
      "no-use-before-define": ["error", { functions: false }],
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "strict": ["error", "function"],
    },
  },
];
