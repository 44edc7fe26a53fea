// Counts tokens of the texts it is given, a JSON string a line, with a vocabulary that comes with the package: no network.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const { countTokens } = createRequire(`${process.argv[2]}/`)('gpt-tokenizer/encoding/o200k_base');
for await (const line of createInterface({ input: process.stdin })) console.log(countTokens(JSON.parse(line)));
