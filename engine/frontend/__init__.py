"""Between people and the engine core: text to token ids on the way in, token ids to text on the way out.

The core knows token ids only. Everything that needs a tokenizer lives here, on either side of
`EngineCore.step`:

    tokenizer, chat_template -> input_processor -> [core] -> output_processor -> detokenizer -> outputs
"""
